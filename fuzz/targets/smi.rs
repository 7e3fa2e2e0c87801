#![no_main]

fuzz::target!(fuzz::smi, fuzz::mutate::text::lines);
