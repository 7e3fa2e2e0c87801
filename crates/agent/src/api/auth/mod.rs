//! Who may use the API: tokens, allowed hosts, TLS.

pub(super) mod tls;
pub(super) mod token;
