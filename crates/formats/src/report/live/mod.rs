//! Reports of a running trace.

pub mod json;
pub mod text;
