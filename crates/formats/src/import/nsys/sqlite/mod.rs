//! NEWMOD import/nsys/sqlite

pub(in crate::import) mod database;
pub(super) mod page_reader;
pub(super) mod record;
pub(super) mod string_table;
pub(super) mod table;
