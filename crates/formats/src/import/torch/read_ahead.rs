//! A file that another thread reads ahead, so that reading and decoding use two cores.

use std::io::{self, ErrorKind, Read};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, Scope};

/// Bytes that are read at once, and maximum number of blocks that wait.
const BLOCK_BYTES: usize = 256 << 10;
const MAX_BLOCKS: usize = 4;

/// The bytes that were read.
pub(super) struct ReadAhead {
    blocks: Receiver<io::Result<Vec<u8>>>,
    /// Blocks to use again.
    used: Sender<Vec<u8>>,
    block: Vec<u8>,
    at: usize,
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
                let mut block: Vec<u8> = empty.try_recv().unwrap_or_default();
                block.resize(BLOCK_BYTES, 0);
                let block = match input.read(&mut block) {
                    Ok(0) => return,
                    Ok(length) => {
                        block.truncate(length);
                        Ok(block)
                    }
                    Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                    Err(error) => Err(error),
                };
                let has_failed = block.is_err();
                if sender.send(block).is_err() || has_failed {
                    return;
                }
            }
        };
        thread::Builder::new().name("file reader".to_owned()).spawn_scoped(scope, read)?;
        Ok(Self { blocks, used, block: Vec::new(), at: 0 })
    }
}

impl Read for ReadAhead {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.at >= self.block.len() {
            // Without another block, the file has ended.
            let Ok(next) = self.blocks.recv() else { return Ok(0) };
            // Fails only if the thread has ended.
            let _ = self.used.send(std::mem::replace(&mut self.block, next?));
            self.at = 0;
        }
        let read = self.block.get(self.at..).unwrap_or_default().read(out)?;
        self.at += read;
        Ok(read)
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

    #[test]
    fn bytes_and_error_are_those_of_the_input() {
        let bytes: Vec<u8> = (0..3_000_000_u32).map(|number| (number * 31 % 251) as u8).collect();
        thread::scope(|scope| {
            let mut ahead = ReadAhead::start(scope, Pieces(bytes.clone(), 0)).unwrap();
            let mut found = Vec::new();
            let error = ahead.read_to_end(&mut found).unwrap_err();
            assert_eq!((found == bytes, error.to_string()), (true, "the disk is broken".into()));
            let mut ahead = ReadAhead::start(scope, &bytes[..]).unwrap();
            let mut found = Vec::new();
            ahead.read_to_end(&mut found).unwrap();
            assert!(found == bytes);
            // A reader that is dropped early ends the thread, or the scope would not end.
            drop(ReadAhead::start(scope, io::repeat(7)).unwrap());
        });
    }
}
