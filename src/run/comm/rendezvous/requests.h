// What a process asks of the rendezvous over its connection, and the answers, as message bodies.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "src/run/comm/rendezvous/store.h"

namespace paradyse::rendezvous {

enum class Command : std::uint8_t { set = 1, set_once = 2, get = 3, get_all = 4 };

std::string request(Command command, const std::vector<std::string>& fields);

// Does what the request says and gives the answer's body.  Throws Malformed for one that is none.
std::string answer_to(std::string_view request, Store& store);

// The values of an answer.  Throws Malformed for one that is none; std::runtime_error with what the
// store said where it refused.
std::vector<std::string> values_in(std::string_view answer);

}  // namespace paradyse::rendezvous
