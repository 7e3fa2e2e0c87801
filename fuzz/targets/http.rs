#![no_main]

fuzz::target!(fuzz::http, fuzz::mutate::http::request);
