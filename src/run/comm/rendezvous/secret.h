// The secret of a run: a text that its processes know and nobody else does.  Whoever knows it can
// be one of them.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>

namespace paradyse::rendezvous {

// A shorter one could be found by trying.
inline constexpr std::size_t kLeastSecret = 16;

// 32 random bytes, as 64 hexadecimal digits.
std::string made_secret();

// What the file holds, but for white space at its ends.  Throws std::invalid_argument, saying what
// to do, for a file that is not there, that others than its owner may read or write, that belongs
// to another user, or whose text is no secret.
std::string secret_in(const std::filesystem::path& file);

// Throws std::invalid_argument naming `source` for a text of fewer than kLeastSecret characters.
void expect_secret(const std::string& secret, const std::string& source);

}  // namespace paradyse::rendezvous
