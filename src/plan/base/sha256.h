// SHA-256 (FIPS 180-4), to name a model or a file by its content.
#pragma once

#include <string>
#include <string_view>

namespace paradyse {

// The digest of `bytes` as 64 lower-case hexadecimal digits.
std::string sha256_hex(std::string_view bytes);

}  // namespace paradyse
