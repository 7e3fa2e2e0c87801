//! A file that another thread reads ahead, so that reading and decoding use two cores.

use std::io::{self, ErrorKind, Read};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, Scope};

use super::pickle::byte_window::{BLOCK_BYTES, HEAD_ROOM};

/// Maximum number of blocks that wait.
const MAX_BLOCKS: usize = 4;

/// Reads the next block: head room and bytes, none at the end. `block` is used again.
pub(super) fn read_block(input: &mut impl Read, mut block: Vec<u8>) -> io::Result<Vec<u8>> {
    block.resize(BLOCK_BYTES, 0);
    loop {
        match input.read(block.get_mut(HEAD_ROOM..).unwrap_or_default()) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            read => {
                block.truncate(HEAD_ROOM.saturating_add(read?));
                return Ok(block);
            }
        }
    }
}

/// The blocks that were read.
pub(super) struct ReadAhead {
    blocks: Receiver<io::Result<Vec<u8>>>,
    /// Blocks to use again.
    used: Sender<Vec<u8>>,
}

impl ReadAhead {
    /// Starts the thread, which ends with the input or after this reader.
    pub(super) fn start<'scope>(
        scope: &'scope Scope<'scope, '_>,
        mut input: impl Read + Send + 'scope,
    ) -> io::Result<Self> {
        let (sender, blocks) = mpsc::sync_channel(MAX_BLOCKS);
        let (used, empty) = mpsc::channel();
        let read = move || {
            loop {
                let block = read_block(&mut input, empty.try_recv().unwrap_or_default());
                let is_last = block.as_ref().map_or(true, |block| block.len() <= HEAD_ROOM);
                if sender.send(block).is_err() || is_last {
                    return;
                }
            }
        };
        thread::Builder::new().name("file reader".to_owned()).spawn_scoped(scope, read)?;
        Ok(Self { blocks, used })
    }

    /// Returns the next block, like [`read_block`].
    pub(super) fn next_block(&mut self, used: Vec<u8>) -> io::Result<Vec<u8>> {
        // Fails only if the thread has ended.
        let _ = self.used.send(used);
        // Without another block, the file has ended.
        self.blocks.recv().unwrap_or_else(|_| Ok(vec![0; HEAD_ROOM]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes in pieces of any size, and an error at the end.
    struct Pieces(Vec<u8>, usize);

    impl Read for Pieces {
        fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
            self.1 = (self.1 * 7919 + 1) % 300_007;
            if self.1.is_multiple_of(5) {
                return Err(ErrorKind::Interrupted.into());
            }
            match self.0.len().min(self.1 + 1).min(out.len()) {
                0 => Err(io::Error::other("the disk is broken")),
                length => {
                    out.iter_mut().zip(self.0.drain(..length)).for_each(|(to, from)| *to = from);
                    Ok(length)
                }
            }
        }
    }

    /// Returns all bytes, and the error if there is one.
    fn read_all(ahead: io::Result<ReadAhead>) -> (Vec<u8>, Option<String>) {
        let (mut ahead, mut found, mut used) = (ahead.unwrap(), Vec::new(), Vec::new());
        loop {
            match ahead.next_block(used) {
                Ok(block) if block.len() == HEAD_ROOM => return (found, None),
                Ok(block) => {
                    found.extend_from_slice(&block[HEAD_ROOM..]);
                    used = block;
                }
                Err(error) => return (found, Some(error.to_string())),
            }
        }
    }

    #[test]
    fn bytes_and_error_are_those_of_the_input() {
        let bytes: Vec<u8> = (0..3_000_000_u32).map(|number| (number * 31 % 251) as u8).collect();
        thread::scope(|scope| {
            let (found, error) = read_all(ReadAhead::start(scope, Pieces(bytes.clone(), 0)));
            assert_eq!((found == bytes, error.as_deref()), (true, Some("the disk is broken")));
            let (found, error) = read_all(ReadAhead::start(scope, &bytes[..]));
            assert_eq!((found == bytes, error), (true, None));
            // A reader that is dropped early ends the thread, or the scope would not end.
            drop(ReadAhead::start(scope, io::repeat(7)).unwrap());
        });
    }
}
