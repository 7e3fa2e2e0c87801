//! NEWMOD report/live

pub mod json;
pub mod text;
