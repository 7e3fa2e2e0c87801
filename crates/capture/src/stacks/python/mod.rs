//! Python stacks: where the interpreter keeps them, and what its code is called.
