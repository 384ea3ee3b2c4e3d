// Numbers and texts of ranks, outside any budget: for reports and agreement.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "paradyse/run/communicator.h"

namespace paradyse {

// Every rank's `mine`, all of the same length, on every rank.  Its memory is no part of a budget,
// and its traffic counts as any other.
std::vector<std::vector<std::int64_t>> gather(
    const std::vector<std::int64_t>& mine, Communicator& world);

// Whether it is so on any rank; on every rank.
bool on_any_rank(bool mine, Communicator& world);

// On rank 0 the texts of all ranks in turn, those that are not empty; elsewhere nothing.
std::vector<std::string> gather_texts(const std::string& mine, Communicator& world);

// The first rank's text that is not empty, on every rank; "": all are.  So what went wrong on one
// rank is known to all before any goes on.
std::string first_text(const std::string& mine, Communicator& world);

// Rank 0's number, or text, becomes everybody's.  `op`: names the operation; a literal.
std::int64_t broadcast_number(std::int64_t mine, std::string_view op, Communicator& world);
std::string broadcast_text(const std::string& mine, std::string_view op, Communicator& world);

}  // namespace paradyse
