// Numbers of every rank, for reports.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "paradyse/communicator.h"

namespace paradyse {

// Every rank's `mine`, all of the same length, on every rank.  Its memory is no part of a budget,
// and its traffic counts as any other.
std::vector<std::vector<std::int64_t>> gather(
    const std::vector<std::int64_t>& mine, Communicator& world);

// On rank 0 the texts of all ranks in turn, those that are not empty; elsewhere nothing.
std::vector<std::string> gather_texts(const std::string& mine, Communicator& world);

}  // namespace paradyse
