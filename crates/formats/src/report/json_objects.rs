//! Declaration of JSON objects: the contract of a report in one place.

use std::borrow::Cow;

/// A name of a fixed set. It is written from a constant; a reader gets what the file has.
pub(crate) type Word = Cow<'static, str>;

/// Declares objects: each field once, with its name, type and value. The results are structs with
/// a constructor `new`.
///
/// A field `name?` is absent if its value is none. Statements in `let { … }` come before the values.
/// Objects are only written, unless `: Deserialize` follows the arguments; then fields that a file
/// does not have get their default. Fields are visible in this crate; `@fields(pub)` at the start
/// makes them public.
macro_rules! json_objects {
    (@fields($field_vis:vis) $(
        $(#[$meta:meta])*
        $vis:vis struct $name:ident($($arg:ident: $arg_type:ty),* $(,)?) $(: $read:ident)?
        $(let { $($statement:tt)* })?
        {
            $(
                $(#[$field_meta:meta])*
                $field:ident $(? $([$absent:tt])?)?: $type:ty = $value:expr
            ),* $(,)?
        }
    )*) => {$(
        json_objects! { @derive $($read)?
            $(#[$meta])*
            $vis struct $name {
                $(
                    $(#[$field_meta])*
                    $(#[serde(skip_serializing_if = "Option::is_none")] $($absent)?)?
                    $field_vis $field: $type,
                )*
            }
        }

        impl $name {
            /// Returns the object.
            $vis fn new($($arg: $arg_type),*) -> Self {
                $($($statement)*)?
                Self { $($field: $value,)* }
            }
        }
    )*};
    (@derive Deserialize $($item:tt)*) => {
        #[derive(Default, serde::Serialize, serde::Deserialize)]
        #[serde(default)]
        $($item)*
    };
    (@derive $($item:tt)*) => {
        #[derive(serde::Serialize)]
        $($item)*
    };
    ($(#[$meta:meta])* $vis:vis struct $($rest:tt)*) => {
        json_objects! { @fields(pub(crate)) $(#[$meta])* $vis struct $($rest)* }
    };
}
pub(crate) use json_objects;
