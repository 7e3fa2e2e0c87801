//! Real interpreters, running or recorded, and what is left of them when bytes are wrong.

mod compare;
mod files;
mod hostile;
mod image;
mod live;
mod recorded;
mod walker;
