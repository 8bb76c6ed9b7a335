# shellcheck shell=dash
# Takes the disk away from the kernel and puts everything malformed into its rings; the host says
# when it has seen what an attack does. ROUNDS of noise come last, from SEED.
ROUNDS=${ROUNDS:-100}
SEED=${SEED:-1}

agent hostile "$DISK" --seed "$SEED" --rounds "$ROUNDS"
