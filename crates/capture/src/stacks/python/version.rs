//! Versions of Python, and how to determine them from a file.

use std::fmt;

/// A version of Python. All its maintenance releases have the same structures.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct PythonVersion {
    /// 3.
    pub(crate) major: u8,
    /// 11 in 3.11.
    pub(crate) minor: u8,
}

impl PythonVersion {
    /// Returns a version of Python 3.
    pub(crate) const fn three(minor: u8) -> Self {
        Self { major: 3, minor }
    }

    /// Converts `PY_VERSION_HEX`: 0x030b07f0 is 3.11.7.
    pub(crate) fn from_hex(hex: u64) -> Option<Self> {
        let [major, minor, _, _] = u32::try_from(hex).ok()?.to_be_bytes();
        (major > 0).then_some(Self { major, minor })
    }

    /// Converts to the format of the probes: 0x030b.
    pub(crate) fn wire(self) -> u16 {
        u16::from_be_bytes([self.major, self.minor])
    }
}

impl fmt::Display for PythonVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// Finds the version in the constants of an interpreter: by its library directory
/// (`lib/python3.9`), or else by its full number. Before 3.11 a stripped file has no other sign of
/// it.
pub(super) fn of_constants(constants: &[u8]) -> Option<PythonVersion> {
    let strings = || constants.split(|&b| b == 0);
    only(strings().filter_map(library_dir)).or_else(|| only(strings().filter_map(number)))
}

/// Returns the version if all of them are equal.
fn only(mut found: impl Iterator<Item = PythonVersion>) -> Option<PythonVersion> {
    let first = found.next()?;
    found.all(|other| other == first).then_some(first)
}

/// Returns the version in a file name: `python3.9`, `libpython3.9.so.1.0`.
pub(super) fn of_file_name(name: &str) -> Option<PythonVersion> {
    let rest = name.strip_prefix("lib").unwrap_or(name).strip_prefix("python3.")?;
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    rest.get(..digits)?.parse().ok().map(PythonVersion::three)
}

/// Parses `python3.9`, or a path that ends with it.
fn library_dir(text: &[u8]) -> Option<PythonVersion> {
    let name = text.rsplit(|&b| b == b'/').next()?;
    let digits = name.strip_prefix(b"python3.")?;
    std::str::from_utf8(digits).ok()?.parse().ok().map(PythonVersion::three)
}

/// Parses `3.9.18` or `3.9.18+`.
fn number(text: &[u8]) -> Option<PythonVersion> {
    let mut parts = std::str::from_utf8(text).ok()?.strip_prefix("3.")?.split('.');
    let minor = parts.next()?.parse().ok()?;
    let micro = parts.next()?;
    (micro.starts_with(|c: char| c.is_ascii_digit()) && micro.len() < 8 && parts.next().is_none())
        .then_some(PythonVersion::three(minor))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_is_found_in_constants() {
        let minor = |text: &[u8]| of_constants(text).map(|version| version.minor);
        assert_eq!(minor(b"a\0/usr/lib\0python3.9\0x"), Some(9));
        assert_eq!(minor(b"\0/usr/lib/python3.10\0Deprecated since Python 3.11.\0"), Some(10));
        assert_eq!(minor(b"\0%s\x003.10.13+\0"), Some(10));
        assert_eq!(minor(b"python3.9\0python3.10\0"), None);
        assert_eq!(minor(b"python3.9\0python3.10\x003.10.1\0"), Some(10));
        assert_eq!(minor(b"python3.999\0python3.\x003.9.x\x003.9\x003.9.1.2\0\xff"), None);
        assert_eq!(minor(b""), None);
    }

    #[test]
    fn version_is_found_in_file_name() {
        let minor = |text: &str| of_file_name(text).map(|version| version.minor);
        assert_eq!(minor("python3.9"), Some(9));
        assert_eq!(minor("libpython3.10.so.1.0"), Some(10));
        assert_eq!(minor("libpython3.so"), None);
        assert_eq!(minor("python3"), None);
        assert_eq!(minor("python3.1000"), None);
        assert_eq!(minor("blender"), None);
    }

    #[test]
    fn hexadecimal_version_is_parsed() {
        assert_eq!(PythonVersion::from_hex(0x030b_07f0), Some(PythonVersion::three(11)));
        assert_eq!(PythonVersion::three(11).wire(), 0x030b);
        assert_eq!(PythonVersion::from_hex(0), None);
        assert_eq!(PythonVersion::from_hex(u64::MAX), None);
    }
}
