// How the fast planner goes on: micro-batches are solved again, two at a time.
#pragma once

#include <cstdint>
#include <vector>

#include "src/plan/search/grouping/fast/packer.h"

namespace paradyse::fast {

// Sum over micro-batches.
double seconds_of(const GroupingTask& task, const std::vector<Packed>& micro_batches);

// One micro-batch less, if that is better: the others take a little longer each, as little as holds
// all items.
void squeeze(Packer& packer, std::vector<Packed>& micro_batches);

// Packs all items anew with a duration that differs in one micro-batch, by less and less, or with
// another least size there, as long as that is better and packer.work() is below `most_work`.
void reshape(Packer& packer, std::vector<Packed>& micro_batches, std::int64_t most_work);

// Puts the items of two micro-batches together and cuts them anew, into one or two, until no pair
// gets better or packer.work() has reached `most_work`.
void improve(Packer& packer, std::vector<Packed>& micro_batches, std::int64_t most_work);

}  // namespace paradyse::fast
