#!/bin/sh
# The main job, on this machine's GPUs or else on a sample node. Nothing outside of build/demo changes.
set -eu
cd "$(dirname "$0")/.."
rm -rf build/demo
mkdir -p build/demo
export XDG_CACHE_HOME="$PWD/build/demo/cache"
export AMD_CDI_SPEC_DIR="$PWD/build/demo/cdi"
export AMD_CDI_STATE_DIR="$PWD/build/demo/state"

if amd-cdi topology --json >/dev/null 2>&1; then
	echo "This machine has AMD GPUs; they are only read."
else
	echo "This machine has no AMD GPU that can be used: showing the sample node mi300x (eight MI300X)."
	export AMD_CDI_SAMPLE=mi300x
fi

show() {
	echo
	echo "\$ $*"
	"$@"
}

show amd-cdi generate
gpu=0
if amd-cdi show amd.com/gpu=0:0 >/dev/null 2>&1; then
	# A partitioned GPU is shared partition by partition.
	gpu=0:0
fi
show amd-cdi share create alice --gpu "$gpu" --cores 25 --memory 25%
show amd-cdi share create bob --gpu "$gpu" --cores 50 --memory 50%
echo
echo "The generated file, with some devices left out:"
sed -n '1,20p' "$AMD_CDI_SPEC_DIR/amd.com-gpu.yaml"
echo "[...]"
sed -n '/share-alice"/,/share-bob"/p' "$AMD_CDI_SPEC_DIR/amd.com-gpu.yaml" | sed '$d'
show amd-cdi validate
show amd-cdi list
show amd-cdi share list
echo
echo "\$ amd-cdi topology"
amd-cdi topology --svg build/demo/topology.svg | sed '/^GPU 2 /,$d'
echo "[...]"
echo "All pictures are in build/demo/topology.svg."
