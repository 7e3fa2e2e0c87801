//! Majority device of a site's allocations (Boyer–Moore majority vote).

use crate::model::DeviceId;

/// The device with more than half of all allocations, if there is one.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MajorityDevice {
    device: Option<DeviceId>,
    lead: u64,
}

impl MajorityDevice {
    /// Counts an allocation.
    pub(crate) fn add(&mut self, device: Option<DeviceId>) {
        if self.device == device {
            self.lead += 1;
        } else if self.lead == 0 {
            (self.device, self.lead) = (device, 1);
        } else {
            self.lead -= 1;
        }
    }

    /// Moves an allocation that was counted for `from` to `to`.
    pub(crate) fn replace(&mut self, from: Option<DeviceId>, to: Option<DeviceId>) {
        if self.device == from {
            self.lead = self.lead.saturating_sub(1);
        } else {
            self.lead += 1;
        }
        self.add(to);
    }

    /// Merges two votes.
    pub(crate) fn merge(self, other: Self) -> Self {
        let (more, less) = if self.lead >= other.lead { (self, other) } else { (other, self) };
        let same = more.device == less.device;
        let lead = if same { more.lead.saturating_add(less.lead) } else { more.lead - less.lead };
        Self { lead, ..more }
    }

    pub(crate) fn device(self) -> Option<DeviceId> {
        self.device
    }
}
