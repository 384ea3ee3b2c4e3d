// The middle of some values.
#pragma once

#include <vector>

namespace paradyse {

// Of an even number of values the mean of the two in the middle; of none, NaN.
double median(std::vector<double> values);

}  // namespace paradyse
