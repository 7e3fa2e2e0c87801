//! Where in a program an allocation was made: stacks, native and Python, and the names in them.

mod native;
mod python;
