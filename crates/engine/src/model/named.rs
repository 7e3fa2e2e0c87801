//! Enums whose values have names in outputs and files.

/// Declares an enum, the list of its values, and their names.
#[macro_export]
macro_rules! named_enum {
    (
        $(#[$attribute:meta])*
        pub enum $type:ident { $($(#[$about:meta])* $value:ident => $name:literal,)* }
    ) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
        pub enum $type { $($(#[$about])* $value,)* }

        impl $type {
            /// All values, in display order.
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$value),*];

            /// Name in reports, JSON, metrics and files.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$value => $name,)*
                }
            }

            /// Value with this name.
            pub fn from_name(name: &str) -> Option<Self> {
                Self::ALL.into_iter().find(|value| value.name() == name)
            }

            /// Position in the list of all values.
            pub const fn index(self) -> usize {
                self as usize
            }
        }

        impl std::str::FromStr for $type {
            type Err = String;

            fn from_str(name: &str) -> Result<Self, Self::Err> {
                Self::from_name(name).ok_or_else(|| $crate::model::named::one_of(&[$($name),*]))
            }
        }
    };
}
pub(crate) use named_enum;

/// Returns `must be info, warning or critical`.
pub fn one_of(names: &[&str]) -> String {
    match names {
        [first @ .., last] if !first.is_empty() => {
            format!("must be {} or {last}", first.join(", "))
        }
        _ => format!("must be {}", names.join(", ")),
    }
}
