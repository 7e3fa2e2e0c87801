//! Names of kernels for people.

/// What a kernel is called.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KernelName {
    /// For tables.
    pub short: String,
    /// Everything.
    pub full: String,
}

impl KernelName {
    /// From the name that the driver knows.
    #[must_use]
    pub fn new(symbol: &str) -> Self {
        Self { short: symbol.to_owned(), full: symbol.to_owned() }
    }
}
