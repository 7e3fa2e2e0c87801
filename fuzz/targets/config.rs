#![no_main]

fuzz::target!(fuzz::config, fuzz::mutate::toml::config);
