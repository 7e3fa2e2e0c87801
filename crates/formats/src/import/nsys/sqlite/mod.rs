//! A reader of SQLite files that trusts nothing in them.

pub(crate) mod database;
pub(super) mod page_reader;
mod parallel;
pub(super) mod record;
pub(super) mod string_table;
pub(super) mod table;
