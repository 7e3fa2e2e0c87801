//! Files of the agent: complete or absent, secret, and out of reach of other users.

pub(crate) mod durable_file;
pub(crate) mod secret;
pub(crate) mod trusted_path;
