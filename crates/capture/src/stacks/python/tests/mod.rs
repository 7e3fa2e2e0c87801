//! Real interpreters, running, recorded or corrupt.

mod compare;
mod files;
mod hostile;
mod image;
mod live;
mod recorded;
mod walker;
