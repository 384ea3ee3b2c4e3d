// The most ranks that are taken, each limit once.
#pragma once

namespace paradyse {

inline constexpr int kMostRanks = 1024;                // that run: each has a thread and memory
inline constexpr int kMostLayoutRanks = 4096;          // that layouts are planned for
inline constexpr int kMostPlannedRanks = 65536;        // that batches are planned for
inline constexpr int kMostClusterRanks = 1024 * 1024;  // of a cluster file

}  // namespace paradyse
