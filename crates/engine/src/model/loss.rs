//! Classes of records that were not delivered.

/// Declares the classes once: the counts, their names and everything that treats all alike.
macro_rules! loss_classes {
    ($(#[$about:meta])* pub struct $type:ident { $($(#[$meaning:meta])* $class:ident,)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct $type { $($(#[$meaning])* pub $class: u64,)* }

        impl $type {
            /// Counts with the names of their classes.
            pub fn counts(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($class), self.$class)),*].into_iter()
            }

            /// Counts by the names of their classes.
            pub fn from_counts(count: impl Fn(&'static str) -> u64) -> Self {
                Self { $($class: count(stringify!($class)),)* }
            }

            /// Combines the counts with those of another one by one.
            pub fn combined(&self, other: &Self, with: fn(u64, u64) -> u64) -> Self {
                Self { $($class: with(self.$class, other.$class),)* }
            }
        }
    };
}

loss_classes! {
    /// Records that were not delivered, as *increments* since the previous event of this kind for
    /// the process. The pid is 0 if the process is unknown.
    ///
    /// The time of the event is when the counters were read: no loss is newer, and all records from
    /// before that time are delivered first. The bounds of a snapshot cover losses reported before
    /// it.
    pub struct LostDelta {
        /// Successful allocating calls.
        allocations,
        /// Bytes requested by those calls.
        allocated_bytes,
        /// Successful freeing calls.
        frees,
        /// Failed calls.
        failures,
        /// All others: contexts, process lifecycle, mappings and references of physical memory,
        /// pools, graphs and captures.
        other,
        /// Launches not counted by kernel. They do not affect memory.
        launches,
        /// Copies and memsets not counted. They do not affect memory.
        copies,
        /// Allocations whose call stack was lost.
        stacks,
        /// Creations and destructions of CUDA objects. Records that also concern memory are included
        /// in `other` as well.
        objects,
        /// Blocks allocated or freed by a framework's cache. They do not affect the driver's memory.
        tensors,
        /// Processes that ended without having been announced. Nothing is known about them except
        /// calls that were delivered.
        processes,
    }
}

impl LostDelta {
    /// Number of records that affect memory.
    pub const fn events(&self) -> u64 {
        let calls = self.allocations.saturating_add(self.frees);
        calls.saturating_add(self.failures).saturating_add(self.other)
    }

    /// Counts of records by class, without processes of which none arrived.
    pub fn records(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.counts().filter(|(class, _)| !matches!(*class, "allocated_bytes" | "processes"))
    }
}
