#include "cpu/delta_rule.h"

#include "cpu/reference/simd.h"
#include "cpu/shared/delta_rule-inl.h"

namespace ballast {

void reference_delta_rule(const DeltaTile& tile) { delta_rule(tile); }

}  // namespace ballast
