# bash completion for conflux.  Installed as share/bash-completion/completions/conflux, or sourced.
# shellcheck shell=bash

_conflux() {
  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} i
  COMPREPLY=()

  # bash splits "--devices=cpu" at the "=".
  if [[ $word == "=" ]]; then
    word=
  elif [[ $before == "=" && $COMP_CWORD -gt 1 ]]; then
    before=${COMP_WORDS[COMP_CWORD - 2]}
  fi

  # Behind the script's name files are as good a guess as any.
  for ((i = 1; i < COMP_CWORD; i++)); do
    case ${COMP_WORDS[i]} in
      -e | -l | -j | --devices | --threads | --seed | --memory-limit) ((++i)) ;;
      =) ((++i)) ;;
      -- | -) ((++i)); break ;;
      -*) ;;
      *) break ;;
    esac
  done
  if ((i < COMP_CWORD)); then
    mapfile -t COMPREPLY < <(compgen -f -- "$word")
    compopt -o filenames 2>/dev/null
    return
  fi

  case $before in
    --devices) mapfile -t COMPREPLY < <(compgen -W "cpu cpu*2 cuda:0 cuda:0*2" -- "$word") ;;
    --memory-limit) mapfile -t COMPREPLY < <(compgen -W "512M 1G 4G 16G" -- "$word") ;;
    -j) mapfile -t COMPREPLY < <(compgen -W "on off flush v dump" -- "$word") ;;
    -e | -l | --threads | --seed) ;;
    *)
      if [[ $word == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "-e -l -i -E -j -O -v --version --info --help --devices --threads --seed
          --memory-limit --" -- "$word")
      else
        mapfile -t COMPREPLY < <(compgen -d -- "$word"; compgen -f -X '!*.lua' -- "$word")
        compopt -o filenames 2>/dev/null
      fi ;;
  esac
}

complete -F _conflux conflux
