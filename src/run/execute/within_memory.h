// Work of all ranks that may need more memory than there is, and how they go on together.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "paradyse/run/communicator.h"

namespace paradyse {

// All ranks call it.  Runs body() and returns nothing; where it lacked memory on some rank, of its
// budget (OutOfMemory) or of the machine (naming_lack), all ranks have dropped what they did and
// recovered (communicator.h: no communicator from before is good any more), and this is the first
// such rank's message.  Everything else that body() throws comes out, as does OutOfMemory where
// communicators do not recover.
std::optional<std::string> within_memory(
    Communicators& communicators, const std::function<void()>& body);

}  // namespace paradyse
