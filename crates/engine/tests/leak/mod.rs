//! The leak classifier over many shapes: leaks are found in time, and healthy sites are never
//! suspects.

mod leaks;
mod not_leaks;
mod properties;
mod scenario;
