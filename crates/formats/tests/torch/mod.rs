//! PyTorch snapshots: real, generated and hostile ones. `make.py` writes the generated ones and the
//! expected results.

mod checking_sink;
mod files;
mod hostile;
