#![no_main]

fuzz::target!(fuzz::records, fuzz::mutate::records::records);
