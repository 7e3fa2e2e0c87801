//! Sections of the configuration. Each key is declared once, with its description and its default;
//! the reference page is generated from these declarations.

/// A key, for the reference page.
#[cfg(test)]
pub(super) struct Key {
    pub(super) name: &'static str,
    /// Lines of the description.
    pub(super) about: &'static [&'static str],
    /// A value in TOML: the default, or an example.
    pub(super) value: &'static str,
    pub(super) is_default: bool,
}

/// Declares a section: `key: Type = DEFAULT, default "TOML";`, or `example "TOML";` for a key
/// without a default.
macro_rules! section {
    (
        $(#[doc = $about:literal])+
        $name:ident {
            $(
                $(#[doc = $doc:literal])+
                $(#[serde($rename:ident = $toml_name:literal)])?
                $key:ident: $type:ty = $default:expr, $mark:ident $value:literal;
            )*
        }
    ) => {
        $(#[doc = $about])+
        #[derive(Clone, Debug, serde::Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct $name {
            $(
                $(#[doc = $doc])+
                $(#[serde($rename = $toml_name)])?
                pub $key: $type,
            )*
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($key: $default,)* }
            }
        }

        #[cfg(test)]
        impl $name {
            pub(in crate::config) const ABOUT: &str = concat!($($about, "\n",)+);
            pub(in crate::config) const KEYS: &[$crate::config::section::Key] = &[$(
                $crate::config::section::Key {
                    name: {
                        let _name = stringify!($key);
                        $(let _name = $toml_name;)?
                        _name
                    },
                    about: &[$($doc),+],
                    value: $value,
                    is_default: $crate::config::section::is_default(stringify!($mark)),
                },
            )*];
        }
    };
}

pub(super) use section;

/// Whether a value is the default; `example` marks others.
#[cfg(test)]
pub(super) const fn is_default(mark: &str) -> bool {
    matches!(mark.as_bytes(), b"default")
}
