// The processors of this machine.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace paradyse {

// That this process may use.
int usable_cores();

// Which they are: numbers of one length, the first of which says which machine it is.
std::vector<std::int64_t> own_cores();
// How many there are in what processes, perhaps of several machines, say so: one that several may
// use counts once.
int cores_of_all(std::span<const std::vector<std::int64_t>> of_processes);

}  // namespace paradyse
