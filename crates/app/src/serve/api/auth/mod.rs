//! NEWMOD serve/api/auth

pub(super) mod tls;
pub(super) mod token;
