#![no_main]

fuzz::target!(fuzz::import, fuzz::mutate::pickle::pickle);
