// Bytes as people write and read them.
#pragma once

#include <cstdint>
#include <string>

namespace paradyse {

// "512 B", "1.5 KiB", "30.0 MiB", up to TiB.
std::string bytes_text(std::int64_t bytes);

// "512MiB", "2GiB", "1000000" (bytes).  Throws std::invalid_argument saying what is accepted.
std::int64_t parse_bytes(const std::string& text);

}  // namespace paradyse
