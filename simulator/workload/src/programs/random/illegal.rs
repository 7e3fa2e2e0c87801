//! Calls that a driver must reject.

use std::ffi::c_void;

use super::Worker;
use super::objects::Object;
use crate::cuda::Result;
use crate::log_error;

impl Worker {
    /// Makes a call that must fail and change nothing.
    pub(super) fn make_illegal_call(&mut self) {
        let driver = self.driver;
        let result: Result<()> = match self.random.u32(..7) {
            0 => driver.alloc(0).map(|_| ()),
            // More than any device has.
            1 => driver.alloc(1 << 46).map(|_| ()),
            // Never allocated.
            2 => driver.free(0x1234_5000),
            3 => {
                let unknown = 0x1234_5000 as *mut c_void;
                // SAFETY: the driver does not know this memory and leaves it alone.
                unsafe { driver.cuMemFreeHost(unknown) }
            }
            4 => {
                let unknown = 0x1234_5000 as *mut c_void;
                // SAFETY: as above.
                unsafe { driver.cuMemHostUnregister(unknown) }
            }
            5 if self.single_threaded => return self.free_twice(),
            _ => match self.objects.iter().find_map(Object::pointer) {
                // Not the start of the allocation.
                Some(pointer) => driver.free(pointer + 1),
                None => return,
            },
        };
        self.expect_error(result);
    }

    fn expect_error(&mut self, result: Result<()>) {
        match result {
            Err(_) => self.counts.rejected += 1,
            Ok(()) => {
                self.counts.unexpected += 1;
                log_error("the driver accepted an illegal call");
            }
        }
    }

    /// Frees twice, if no other thread can get the address in between.
    fn free_twice(&mut self) {
        let driver = self.driver;
        let pointer = driver.alloc(4096);
        let Some(pointer) = self.count_result(pointer) else { return };
        let first = driver.free(pointer);
        if self.count_result(first).is_none() {
            self.objects.push(Object::Device(pointer));
            return;
        }
        let second = driver.free(pointer);
        self.expect_error(second);
    }
}
