#![no_main]

fuzz::target!(fuzz::elf, fuzz::mutate::elf::elf);
