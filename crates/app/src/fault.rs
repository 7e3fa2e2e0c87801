//! Fault points, for parts that do not know capture.

pub(crate) use capture::fault::point;
