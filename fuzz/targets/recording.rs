#![no_main]

fuzz::target!(fuzz::recording, fuzz::mutate::arrow::recording);
