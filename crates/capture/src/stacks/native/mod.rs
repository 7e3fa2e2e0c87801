//! Native stacks: what a process has mapped, how to unwind it, what the code is called.
