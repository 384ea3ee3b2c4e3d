// Bytes for people: "512 B", "1.5 KiB", "30.0 MiB", up to TiB.
#pragma once

#include <cstdint>
#include <string>

namespace paradyse {

std::string bytes_text(std::int64_t bytes);

}  // namespace paradyse
