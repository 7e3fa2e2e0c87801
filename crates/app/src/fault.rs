//! Fault points for modules that do not use capture.

pub(crate) use capture::fault::point;
