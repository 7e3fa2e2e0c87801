//! Signals as bytes in a pipe.

use std::io::{self, PipeReader};

/// Returns a pipe that gets one byte for each arrival of one of these signals, which then no longer
/// end the program. `signal_hook::iterator` would use a socket, which profiles of AppArmor can forbid.
pub(crate) fn pipe_of(signals: &[i32]) -> io::Result<PipeReader> {
    let (reader, writer) = io::pipe()?;
    for signal in signals {
        signal_hook::low_level::pipe::register(*signal, writer.try_clone()?)?;
    }
    Ok(reader)
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use signal_hook::consts::{SIGUSR1, SIGUSR2};

    use super::*;

    #[test]
    fn each_arrival_of_a_signal_is_a_byte() {
        let mut pipe = pipe_of(&[SIGUSR1, SIGUSR2]).unwrap();
        for signal in [SIGUSR1, SIGUSR2, SIGUSR1] {
            signal_hook::low_level::raise(signal).unwrap();
        }
        let mut bytes = [0; 3];
        pipe.read_exact(&mut bytes).unwrap();
    }
}
