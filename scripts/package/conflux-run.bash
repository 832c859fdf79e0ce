# bash completion for conflux-run.  Installed as share/bash-completion/completions/conflux-run, or sourced.
# shellcheck shell=bash

_conflux_run() {
  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} i program=
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
      -n | --nproc | --devices | --output | --grace) ((++i)) ;;
      =) ((++i)) ;;
      --) program=$((i + 1)); break ;;
      -*) ;;
      *) break ;;
    esac
  done
  if [[ $program == "$COMP_CWORD" ]]; then
    mapfile -t COMPREPLY < <(compgen -c -- "$word")
    return
  fi
  if ((i < COMP_CWORD)); then
    mapfile -t COMPREPLY < <(compgen -f -- "$word")
    compopt -o filenames 2>/dev/null
    return
  fi

  case $before in
    --devices) mapfile -t COMPREPLY < <(compgen -W "cpu cpu*2 cuda:0 cuda:0*2" -- "$word") ;;
    --output)
      mapfile -t COMPREPLY < <(compgen -d -- "$word")
      compopt -o filenames 2>/dev/null ;;
    -n | --nproc | --grace) ;;
    *)
      if [[ $word == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "-n --nproc --devices --output --grace --version --help --" -- "$word")
      else
        mapfile -t COMPREPLY < <(compgen -d -- "$word"; compgen -f -X '!*.lua' -- "$word")
        compopt -o filenames 2>/dev/null
      fi ;;
  esac
}

complete -F _conflux_run conflux-run
