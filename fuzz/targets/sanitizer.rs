#![no_main]

fuzz::target!(fuzz::import, fuzz::mutate::text::xml);
