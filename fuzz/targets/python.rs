#![no_main]

fuzz::target!(fuzz::python, fuzz::mutate::plain);
