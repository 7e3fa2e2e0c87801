#![no_main]

fuzz::target!(fuzz::import, fuzz::mutate::sqlite::sqlite);
